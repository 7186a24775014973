// SPDX-License-Identifier: MIT
// The page of `tessera report`: the files of this folder, made part of the program by CMake.
#pragma once

namespace tessera::tools {

extern const char* const
    report_template;  // with the marks /*{style}*/, /*{script}*/ and /*{data}*/
extern const char* const report_style;
extern const char* const report_script;

}  // namespace tessera::tools
