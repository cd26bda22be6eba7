//! attnroute's data plane: it forwards gRPC calls and picks the endpoint of each.
//!
//! The life of a request, by file:
//! 1. `listener` accepts the connection and makes sure it speaks HTTP/2; `server` accepts its calls.
//! 2. `proxy` takes over each call: `route` finds the service by authority, `deadline` fixes the
//!    instant at which it must be over. `call` places it, and again if it was not processed
//!    (`replay`).
//! 3. `service` holds the one immutable snapshot that the pick reads; `constraints` says among
//!    whom, `balancer` picks.
//! 4. `pool` has a connection to the endpoint with room for one more stream.
//! 5. `exchange` moves frames both ways until the answer is complete; `grpc` reads its status.
//!    On routes that try calls again `repeat` goes before it: it keeps what the client sends (`upload`)
//!    and asks `retry` and `hedge` what may be sent once more.
//! 6. `attempt` tells the balancer and `outlier` what became of it, `orca` what the endpoint reported;
//!    `endpoint` and `histogram` count what happened; `metrics` shows it.
//! 7. `health` asks endpoints between calls whether they serve.
//!
//! `runtime` owns the data threads and is the handle of the control side. Nothing here knows
//! Python.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod address;
mod admission;
pub mod attempt;
pub mod balancer;
mod call;
mod call_record;
pub mod cells;
pub mod class;
pub mod clock;
pub mod config;
pub mod connect;
pub mod constraints;
pub mod deadline;
pub mod decisions;
mod drain;
pub mod endpoint;
pub mod error;
pub mod ewma;
mod exchange;
pub mod explain;
mod fault;
mod frames;
mod framing;
pub mod grpc;
pub mod hash;
pub mod health;
pub mod hedge;
pub mod histogram;
pub mod inbound;
mod io;
mod keepalive;
mod leaving;
pub mod ledger;
pub mod listener;
pub mod logging;
pub mod metrics;
pub mod orca;
pub mod outlier;
mod own_call;
pub mod picker;
mod pool;
pub mod probe;
mod proxy;
mod reader;
pub mod reason;
mod repeat;
pub mod repetition;
mod replay;
pub mod retry;
pub mod rng;
pub mod route;
pub mod runtime;
pub mod sampling;
pub mod score_table;
mod server;
pub mod service;
pub mod slow_start;
pub mod spans;
pub mod stats;
pub mod streaming;
mod upload;
pub mod waiting;
