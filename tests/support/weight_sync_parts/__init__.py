"""What the tests of weight sync share."""
