# Writes OUT: page.html with page.css and page.js in their places, as the string that page.h declares.
foreach(part html css js)
  file(READ ${CMAKE_CURRENT_LIST_DIR}/page.${part} ${part})
endforeach()
string(REPLACE "@CSS@" "${css}" html "${html}")
string(REPLACE "@JS@" "${js}" html "${html}")
file(WRITE ${OUT} "#include \"lib/model/report/page.h\"\n\nconst std::string_view ckpt::model::kReportPage = R\"page~(${html})page~\";\n")
