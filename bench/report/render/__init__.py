"""Markup and pictures: tables and charts as Markdown, HTML, SVG, terminal output or data files."""
