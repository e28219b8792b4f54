"""Files of data: plain, compressed, Parquet, or a pipe, as streams of bytes and lines."""
