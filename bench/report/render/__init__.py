"""Markup and pictures: sections as Markdown, HTML, SVG, terminal output or data files. Knows no benchmark."""
