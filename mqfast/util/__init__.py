"""Small parts that any folder uses: atomic files, property files, limits of log lines, words for offsets."""
