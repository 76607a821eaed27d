"""Rules by which public harnesses accept attention, compared with ``judge`` on wrong and right outputs."""
