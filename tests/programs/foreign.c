/* A library that says when it is loaded: what an attacker would have a program with more rights load. */
#include <stdio.h>

__attribute__((constructor)) static void loaded(void)
{
    puts("a foreign library was loaded");
    fflush(stdout);
}
