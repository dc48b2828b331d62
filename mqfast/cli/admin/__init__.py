"""The command ``mqfast admin``: one file for each noun, and RocketMQ's command names beside them."""
