//! Link emulator, scenarios, measurement, energy models and report.
