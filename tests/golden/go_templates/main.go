// Executes templates by Go's text/template, with the functions that Ollama adds. Reads and writes JSON lines.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"text/template"
)

type job struct {
	Template string
	Day      string
	Data     map[string]any
}

func run(j job) map[string]any {
	functions := template.FuncMap{
		"json":        func(v any) string { b, _ := json.Marshal(v); return string(b) },
		"currentDate": func(...string) string { return j.Day },
	}
	parsed, err := template.New("").Option("missingkey=zero").Funcs(functions).Parse(j.Template)
	var text bytes.Buffer
	if err == nil {
		err = parsed.Execute(&text, j.Data)
	}
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"text": text.String()}
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for {
		var j job
		if err := in.Decode(&j); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		if err := out.Encode(run(j)); err != nil {
			panic(err)
		}
	}
}
