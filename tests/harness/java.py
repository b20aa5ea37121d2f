"""Java in tests."""

OPTIONS = "JDK_JAVA_OPTIONS"
"""Of the environment: every Java that a test starts, or that Spark starts for it, takes them."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are short: code that the second compiler makes faster has ended before."""
