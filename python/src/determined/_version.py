"""The version of this package.

The public part is the wire dialect it speaks, so that scripts which compare `determined.__version__`
and requirement files which pin `determined==0.38.1` keep working; the local part is our own release
(PEP 440: `==0.38.1` matches any local part).
"""

__version__ = "0.38.1+det.0.1.0"
