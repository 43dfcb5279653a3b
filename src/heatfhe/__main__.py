# SPDX-License-Identifier: Apache-2.0
"""``python -m heatfhe`` is the command ``heat``."""

import sys

from heatfhe.cli import main

sys.exit(main())
