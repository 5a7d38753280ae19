# A file as an array.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include <stddef.h>\nconst unsigned char ckpt_kernel_image[] = {\n${bytes}};\n"
  "const size_t ckpt_kernel_image_size = sizeof ckpt_kernel_image;\n")
