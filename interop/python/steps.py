"""The common scenario: what every foreign client does with the broker, one step after the other."""

import steps_messages  # noqa: F401
import steps_properties  # noqa: F401
import steps_sessions  # noqa: F401
import steps_subscriptions  # noqa: F401
from step import STEPS, Step

__all__ = ["STEPS", "Step"]
