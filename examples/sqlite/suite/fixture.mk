# Makes the objects of testfixture, the interpreter of SQLite's tests, in SQLite's configured build directory:
# `make -f fixture.mk -C DIRECTORY objects`. `print` says what has to be linked. Two objects call into suite.c.
include Makefile
OBJECTS = $(addprefix obj/,$(notdir $(patsubst %.c,%.o,$(TESTFIXTURE_SRC))))
vpath %.c $(sort $(dir $(TESTFIXTURE_SRC)))

objects: $(OBJECTS)
$(OBJECTS): | sqlite3.c
print:
	@echo $(OBJECTS) $(LIBTCL) $(TLIBS)
obj/%.o: %.c
	@mkdir -p obj
	$(TCC) -w -O1 -g0 $(TEMP_STORE) $(TESTFIXTURE_FLAGS) $(EXTRA) -c -o $@ $<
obj/tclsqlite.o: EXTRA = -UTCLSH_INIT_PROC -DTCLSH_INIT_PROC=suite_init
obj/sqlite3.o: EXTRA = -DSQLITE_EXTRA_INIT=suite_sqlite_init
