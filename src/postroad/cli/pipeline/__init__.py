"""`postroad pipeline`: commands of the jobs on Spark."""
