/* A library that prints when it is loaded: an attacker would make a program with more rights load it. */
#include <stdio.h>

__attribute__((constructor)) static void loaded(void)
{
    puts("a foreign library was loaded");
    fflush(stdout);
}
