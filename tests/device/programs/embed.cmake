# A text as an array of characters.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "extern const char kKernelsPtx[];\nconst char kKernelsPtx[] = {\n${bytes}0};\n")
