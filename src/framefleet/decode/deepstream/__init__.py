"""DeepStream's decode pool, kept in a process of its own: what goes in, where GStreamer comes from, what comes out."""
