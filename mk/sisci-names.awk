# Turns the table of libsisci's symbols (crates/sisci/symbols/sisci.sym) into linker input:
# what=names, a script that gives each function its decorated names; what=exports, a version script.
/^#/ || NF == 0 { next }
$1 == "func" {
    names = names sprintf("_SISCI_PUBLIC_FUNC_ST_%s = %s;\n", $2, $2)
    names = names sprintf("_SISCI_PUBLIC_FUNC_MT_%s = %s;\n", $2, $2)
    exports = exports sprintf("\t\t%s;\n\t\t_SISCI_PUBLIC_FUNC_ST_%s;\n", $2, $2)
    exports = exports sprintf("\t\t_SISCI_PUBLIC_FUNC_MT_%s;\n", $2)
}
$1 == "copy" {
    names = names sprintf("%s = causeway_interposed_%s;\n", $2, $2)
    exports = exports sprintf("\t\t%s;\n", $2)
}
$1 == "const" { exports = exports sprintf("\t\t_SISCI_PUBLIC_CONST_%s;\n", $2) }
END {
    if (what == "names")
        printf "%s", names
    else
        printf "{\n\tglobal:\n%s\tlocal:\n\t\t*;\n};\n", exports
}
