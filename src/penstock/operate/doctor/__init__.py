"""What a machine must have for penstock to run: probes that look, and checks that judge what they saw."""
