"""What audits find, and what it comes to. The ranks' side is bench/runner/audits.py; here nothing needs torch."""
