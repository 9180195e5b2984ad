/* A library that prints a line when it is loaded. An attacker would want a program with more rights to load it. */
#include <stdio.h>

__attribute__((constructor)) static void loaded(void)
{
    puts("a foreign library was loaded");
    fflush(stdout);
}
