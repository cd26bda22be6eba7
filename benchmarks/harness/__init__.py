"""What every scenario uses: processes, load, statistics, result files and charts."""
