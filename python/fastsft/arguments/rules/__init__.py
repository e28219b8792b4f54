"""The rules that settle the fields, one file a subject; `training` applies them in order."""
