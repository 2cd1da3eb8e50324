"""The conformance kit: the provider contract as checks that run against any engine (`hutch conformance PROVIDER`).

report = await run(NativeProvider)              # hutch.conformance.kit
class TestMine(ProviderConformance): ...        # hutch.conformance.pytest_class
"""
