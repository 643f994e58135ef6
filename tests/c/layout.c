/* Prints the size of each struct, the place of each field and the constants, for tests/abi.rs to compare. */

#include "check.h"

#include <stddef.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("%s.%s %zu+%zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define NUMBER(name) printf("%s %lld\n", #name, (long long)name)

int main(void)
{
#include "layout.inc"
    return 0;
}
