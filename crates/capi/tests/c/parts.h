/* Parts of api.c, which use what it has above. */
#include "atomic.h"
#include "buffered.h"
#include "quota.h"
#include "xattrs.h"
