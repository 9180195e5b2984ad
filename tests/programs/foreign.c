/* A library that prints a line when it is loaded. The library represents an attacker's library that a program with more
 * privileges must not load. */
#include <stdio.h>

__attribute__((constructor)) static void loaded(void)
{
    puts("a foreign library was loaded");
    fflush(stdout);
}
