"""`fastsft.inspect`: shows the learned parts of the data as text or page; data_report.json."""
