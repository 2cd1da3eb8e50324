"""Remote engines that can start a process and carry its streams: our guest is installed there and reached over them."""
