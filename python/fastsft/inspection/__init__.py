"""`fastsft.inspect`, which shows the targets in the data as text or as an HTML page, and data_report.json."""
