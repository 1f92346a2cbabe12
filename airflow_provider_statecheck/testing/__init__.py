"""What users and third parties need to test against this package: stores in memory, injected faults, conformance suites."""
