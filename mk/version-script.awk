# Turns a symbol table (crates/*/symbols/*.sym) into a linker version script.
/^#/ || NF == 0 { next }
$1 == "node" { nodes[++count] = $2; parent[$2] = $3; next }
{
    for (i = 2; i < NF; i++) {
        version = $i
        gsub(/@/, "", version)
        names[version] = names[version] "\t\t" $1 ";\n"
    }
}
END {
    for (i = 1; i <= count; i++) {
        version = nodes[i]
        hidden = i == 1 ? "\tlocal:\n\t\t*;\n" : ""
        tail = parent[version] == "" ? "" : " " parent[version]
        printf "%s {\n\tglobal:\n%s%s}%s;\n\n", version, names[version], hidden, tail
    }
}
