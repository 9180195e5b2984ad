timeout: failed to run command ‘./confined’: No such file or directory
