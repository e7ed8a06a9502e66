"""What tests share: conformance classes and stand-ins; the program itself never imports it."""
