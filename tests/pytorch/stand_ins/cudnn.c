// cuDNN: its version, which PyTorch compares with the one that it was built with. No function of it is simulated.
#include <stddef.h>

size_t cudnnGetVersion(void) { return 92600; }
