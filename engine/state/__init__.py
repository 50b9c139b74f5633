"""What a run consists of: the object graph, walked and named."""
