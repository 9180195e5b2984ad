// A stand-in for cuDNN that returns only its version; PyTorch compares this version with the version that it was built
// with. No other function is simulated.
#include <stddef.h>

size_t cudnnGetVersion(void) { return 92600; }
