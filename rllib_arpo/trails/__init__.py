"""The parts specific to the task "trails": models that are cold-started for it, and metrics of its decisive steps."""
