"""Small parts for any folder: atomic files, property files, fastjson, checks of arguments, near names, limits of log
lines.
"""
