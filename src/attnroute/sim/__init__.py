"""The simulator's Python side: scenario files, runs in parallel, reports.

The event loop and the picker are Rust (`crates/simulator`); nothing here decides where a call goes.
"""
