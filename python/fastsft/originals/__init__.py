"""Check that what a script hands over, or has left in a library, is what that library's own files say."""
