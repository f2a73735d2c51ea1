"""Training: methods, the loop, runs that survive being stopped.

``start(plan(Settings(data="photos", clean="200")), Path("run"))`` is what ``narl train photos --clean 200 --out run``
does; ``resume(Path("run"))`` goes on with it, ``Trained("run").predict(inputs)`` uses it.
"""

from narl.train.planning import Plan, plan
from narl.train.session import Outcome, resume, start
from narl.train.settings import Settings
from narl.train.trained import Trained

__all__ = ["Outcome", "Plan", "Settings", "Trained", "plan", "resume", "start"]
