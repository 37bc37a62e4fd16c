/** Where a listener of the broker is. */
record Place(String transport, String url) {}
