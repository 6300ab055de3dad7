"""What this machine has and lacks for captioning: findings, each with its remedy."""
