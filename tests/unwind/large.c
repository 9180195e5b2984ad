/* A library that Linux needs a long time to unmap, because it frees the library's many pages one by one. */
volatile char room[32 << 20];

__attribute__((constructor)) static void fill(void)
{
    unsigned long at;
    for (at = 0; at < sizeof room; at += 4096)
        room[at] = 1;
}


