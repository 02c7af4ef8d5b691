// The header as C++ has it: it compiles, and links to functions of C.
#include "uext4.h"
#include <cstring>

int main() { return std::strlen(uext4_version()) > 0 && uext4_close(nullptr) < 0 ? 0 : 1; }
