"""What a run leaves behind: folder, metrics, pictures, progress."""
